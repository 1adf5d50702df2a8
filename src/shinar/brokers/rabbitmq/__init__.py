"""RabbitMQ as a broker."""
