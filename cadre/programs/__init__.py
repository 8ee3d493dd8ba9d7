"""The endpoint that other people's agent programs call as they would call OpenAI's."""
