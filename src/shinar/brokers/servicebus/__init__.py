"""Azure Service Bus as a broker."""
