"""ActiveMQ Artemis as a broker."""
