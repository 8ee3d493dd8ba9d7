# The same two agents in a shell, with curl and jq. The task comes on standard input, the last line is what is paid.
set -eu
export PYTHONPATH=$(dirname "$0")
task=$(cat)
grid=$(jq -c .grid <<<"$task")
for role in scout walker; do
    prompt=$(python3 -c 'import json, sys; from walk import prompt; print(prompt(json.load(sys.stdin)))' <<<"$grid")
    body=$(jq -n --arg role "$role" --arg prompt "$prompt" '{model: $role, messages: [{role: "user", content: $prompt}]}')
    said=$(curl -sf "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" -d "$body" |
        jq -r '.choices[0].message.content')
    grid=$(python3 -c 'import json, sys; from walk import walked; print(json.dumps(walked(json.loads(sys.argv[1]), sys.argv[2])))' "$grid" "$said")
done
python3 -c 'import json, sys; from walk import score; print(json.dumps(score(json.loads(sys.argv[1])["grid"], json.loads(sys.argv[2]))))' "$task" "$grid"
