from pytriton.client import ApiClient

with ApiClient("127.0.0.1:8000", "predict") as predict:
    print(predict(text="to be or not to be"))
