"""What a program in Python does: write, read, change the primary, write on."""

import sys

from pymongo import MongoClient, WriteConcern
from pymongo.errors import AutoReconnect, DuplicateKeyError

client = MongoClient(sys.argv[1], serverSelectionTimeoutMS=30000)
people = client.app.get_collection("python", write_concern=WriteConcern("majority"))

people.insert_many([{"_id": i, "n": i % 3} for i in range(300)])
assert people.count_documents({"n": 1}) == 100
assert people.update_many({"n": 2}, {"$inc": {"n": 10}}).modified_count == 100
assert [d["_id"] for d in people.find({"n": 12}).sort("_id", -1).limit(2)] == [299, 296]
assert people.create_index("n") == "n_1"
try:
    people.insert_one({"_id": 1})
    raise AssertionError("a duplicate _id was inserted")
except DuplicateKeyError as e:
    assert e.code == 11000

with client.start_session() as session, session.start_transaction():
    people.insert_one({"_id": "a"}, session=session)
    people.delete_one({"_id": 0}, session=session)
assert people.find_one({"_id": "a"}) and not people.find_one({"_id": 0})

before = client.primary
try:
    client.admin.command("replSetStepDown", 60)
except AutoReconnect:
    pass
people.insert_one({"_id": "after"})
assert client.primary != before, "the primary is still %s:%d" % before
assert people.count_documents({}) == 301
assert len(client.nodes) == 3

print("session ends well")
