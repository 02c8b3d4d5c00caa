package mongo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Databases lists the databases of a set: those that the user is authorized for, where it may not
// list all. It retries as Reads does.
func Databases(ctx context.Context, set Caller) ([]string, error) {
	list := bsoncore.NewDocumentBuilder().AppendInt32("listDatabases", 1).AppendBoolean("nameOnly", true).Build()
	reply, err := Reads(set).Call(ctx, Command{DB: "admin", Body: bson.Raw(list)})
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	names, err := DatabaseNames(reply)
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	return names, nil
}

// DatabaseNames returns the names in a reply to listDatabases. They are no views into it.
func DatabaseNames(reply bson.Raw) ([]string, error) {
	e, _ := rawbson.Lookup(reply, "databases")
	array, ok := e.Array()
	if !ok {
		return nil, errors.New("a reply without them")
	}
	var names []string
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, _ := it.Document()
		name, _ := rawbson.Lookup(doc, "name")
		text, ok := name.Text()
		if !ok {
			return nil, errors.New("one without a name")
		}
		names = append(names, strings.Clone(text))
	}
	return names, it.Err()
}
