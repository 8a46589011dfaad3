"""The service as LitServe has it."""

import litserve as ls


class Sentiment(ls.LitAPI):
    def setup(self, device):
        self.words = {"good": 1.0, "bad": -1.0}  # stands for a model

    def decode_request(self, request):
        return request["text"]

    def predict(self, texts):
        return [sum(self.words.get(word, 0.0) for word in text.split()) for text in texts]

    def encode_response(self, score):
        return {"score": score}


if __name__ == "__main__":
    api = Sentiment(max_batch_size=8, batch_timeout=0.01, api_path="/sentiment")
    ls.LitServer(api, workers_per_device=2).run(port=8000)
