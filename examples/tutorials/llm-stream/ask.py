"""Send a request with the `openai` package and print each piece as it arrives."""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8003/v1", api_key="none")
pieces = client.chat.completions.create(
    model="tiny",
    messages=[{"role": "user", "content": "A worker"}],
    max_tokens=6,
    stream=True,
)
count = 0
for piece in pieces:
    if piece.choices and piece.choices[0].delta.content:
        count += 1
        print(piece.choices[0].delta.content, end="", flush=True)
print(f"\n{count} pieces")
