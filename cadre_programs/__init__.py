"""Agent programs as environments: they call an endpoint of ours as they would call OpenAI's. See `docs/programs.md`.

calls       calls of models, their answers and constraints
protocol    OpenAI's two interfaces: requests to calls, answers to bodies and streams
sessions    the key of a program, and the calls that it waits for
server      the HTTP server
processes   fork servers, processes and containers, and the detection that a program is blocked
instances   one run of a program, replayed to where an episode is
rewards     posted, returned and computed rewards
program     the environment, the place to begin
check       `cadre check` of a program
mcp         MCP servers as tools of any environment
containers  containers for programs, and a shell in one as a tool
inside      files that run in the program's own interpreter
"""
