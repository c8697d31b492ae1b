"""The contract of Paceline: settings, the LLMDeployment resource, metric names and routes."""
