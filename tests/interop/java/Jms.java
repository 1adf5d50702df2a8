import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringJoiner;
import org.apache.activemq.artemis.jms.client.ActiveMQConnectionFactory;

import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * A Java service on plain JMS: `java Jms.java tcp://host:port user password queue send|receive|recover [count]`.
 * A message is a line of form fields: `body`, the JMS header fields by name, `.name` for a property.
 */
public final class Jms {
    private static final long WAIT_MS = 20_000;
    private static final PrintStream OUT = new PrintStream(System.out, true, UTF_8);

    public static void main(String[] arguments) throws Exception {
        try (var factory = new ActiveMQConnectionFactory(arguments[0]);
             Connection connection = factory.createConnection(arguments[1], arguments[2])) {
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue(arguments[3]);
            connection.start();
            switch (arguments[4]) {
                case "send" -> send(session, queue);
                case "receive" -> receive(session, queue, Integer.parseInt(arguments[5]));
                case "recover" -> recover(session, queue, Integer.parseInt(arguments[5]));
                default -> throw new IllegalArgumentException(arguments[4]);
            }
        }
    }

    private static void send(Session session, Queue queue) throws Exception {
        MessageProducer producer = session.createProducer(queue);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, String> fields = parse(line);
            TextMessage message = session.createTextMessage(fields.get("body"));
            message.setJMSType(fields.get("JMSType"));
            message.setJMSCorrelationID(fields.get("JMSCorrelationID"));
            for (Map.Entry<String, String> field : fields.entrySet()) {
                if (field.getKey().startsWith(".")) {
                    message.setStringProperty(field.getKey().substring(1), field.getValue());
                }
            }
            producer.send(message);
        }
    }

    private static void receive(Session session, Queue queue, int count) throws JMSException {
        MessageConsumer consumer = session.createConsumer(queue);
        for (int seen = 0; seen < count; seen++) {
            Message message = next(consumer);
            OUT.println(show(message));
            message.acknowledge();
        }
    }

    /** Fails a message some times as JMS does it, then leaves it to the next consumer. */
    private static void recover(Session session, Queue queue, int times) throws JMSException {
        MessageConsumer consumer = session.createConsumer(queue);
        for (int failed = 0; failed < times; failed++) {
            OUT.println(show(next(consumer)));
            session.recover();
        }
    }

    private static Message next(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(WAIT_MS);
        if (message == null) {
            throw new IllegalStateException("no message came");
        }
        return message;
    }

    private static String show(Message message) throws JMSException {
        Map<String, String> fields = new LinkedHashMap<>();
        fields.put("class", message instanceof TextMessage ? "TextMessage" : message.getClass().getSimpleName());
        fields.put("body", message instanceof TextMessage text ? text.getText() : null);
        fields.put("JMSType", message.getJMSType());
        fields.put("JMSCorrelationID", message.getJMSCorrelationID());
        fields.put("JMSTimestamp", Long.toString(message.getJMSTimestamp()));
        for (Object name : Collections.list(message.getPropertyNames())) {
            fields.put("." + name, message.getStringProperty(name.toString()));
        }
        StringJoiner line = new StringJoiner("&");
        fields.forEach((name, value) -> {
            if (value != null) {
                line.add(URLEncoder.encode(name, UTF_8) + "=" + URLEncoder.encode(value, UTF_8));
            }
        });
        return line.toString();
    }

    private static Map<String, String> parse(String line) {
        Map<String, String> fields = new LinkedHashMap<>();
        for (String pair : line.split("&")) {
            String[] halves = pair.split("=", 2);
            fields.put(URLDecoder.decode(halves[0], UTF_8), URLDecoder.decode(halves[1], UTF_8));
        }
        return fields;
    }
}
