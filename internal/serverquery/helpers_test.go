package serverquery

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

func parseJSON(t testing.TB, text string) bson.Raw {
	t.Helper()
	if text == "" {
		return nil
	}
	return bsongen.FromJSON(t, text)
}

func parseAll(t testing.TB, texts ...string) []bson.Raw {
	t.Helper()
	var out []bson.Raw
	for _, text := range texts {
		out = append(out, parseJSON(t, text))
	}
	return out
}

// texts writes documents in canonical form, as other texts written by hand are.
func texts(docs []bson.Raw) []string {
	out := []string{}
	for _, d := range docs {
		out = append(out, d.String())
	}
	return out
}

func mustCompile(t testing.TB, filter string) *Matcher {
	t.Helper()
	m, err := Compile(parseJSON(t, filter), Options{})
	if err != nil {
		t.Fatalf("%s: %v", filter, err)
	}
	return m
}

// wantRefusal checks an error's code and, if given, its message.
func wantRefusal(t testing.TB, what string, err error, code servererr.Code, message string) {
	t.Helper()
	e, ok := errors.AsType[*servererr.Error](err)
	if !ok || e.Code != code || message != "" && e.Message != message {
		t.Errorf("%s: error %v, want code %d %q", what, err, code, message)
	}
}

// wantOurs checks that an error is a refusal.
func wantOurs(t testing.TB, err error) {
	t.Helper()
	if _, ok := errors.AsType[*servererr.Error](err); !ok {
		t.Errorf("an error that is no refusal: %v", err)
	}
}
