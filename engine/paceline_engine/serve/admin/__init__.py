"""The admin port: status, live settings, drain, requests, flight recorder."""
