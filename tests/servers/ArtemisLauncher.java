import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.activemq.artemis.core.config.impl.SecurityConfiguration;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.spi.core.security.ActiveMQJAASSecurityManager;
import org.apache.activemq.artemis.spi.core.security.jaas.InVMLoginModule;

/** Runs Artemis on a broker.xml with one user: `java ArtemisLauncher.java broker.xml user password`. */
public final class ArtemisLauncher {
    public static void main(String[] arguments) throws Exception {
        SecurityConfiguration users = new SecurityConfiguration();
        users.addUser(arguments[1], arguments[2]);
        users.addRole(arguments[1], "all");
        EmbeddedActiveMQ server = new EmbeddedActiveMQ();
        server.setConfigResourcePath(new java.io.File(arguments[0]).toURI().toString());
        server.setSecurityManager(new ActiveMQJAASSecurityManager(InVMLoginModule.class.getName(), users));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                server.stop();
            } catch (Exception broken) {
                broken.printStackTrace();
            }
        }));
        server.start();
        System.out.println("ready");
        new CountDownLatch(1).await();
    }
}
