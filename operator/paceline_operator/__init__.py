"""The operator: keeps what an LLMDeployment asks for true, and says so in its status."""
