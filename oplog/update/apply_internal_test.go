package update

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

func TestNullsSizeIsTheSize(t *testing.T) {
	// starts[i] is the size of the elements before number i.
	starts := []int{0}
	for i := range 11_000 {
		starts = append(starts, starts[i]+len(appendHeader(nil, bson.TypeNull, strconv.Itoa(i))))
	}
	for _, from := range []int{0, 1, 8, 9, 10, 11, 99, 100, 101, 999, 1000, 5000, 10_000, 11_000} {
		for end, start := range starts {
			if got, want := nullsSize(from, end), max(start-starts[from], 0); got != want {
				t.Fatalf("from %d to %d: %d bytes, want %d", from, end, got, want)
			}
		}
	}
}

// Checking the size in advance does not change the limit: a result of exactly the
// maximum size is accepted.
func TestPaddingFillsTheLimit(t *testing.T) {
	marshal := func(v any) bson.Raw {
		raw, err := bson.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	pre := marshal(bson.D{{Key: "v", Value: bson.A{"first", "second"}}})
	array, _ := rawbson.Lookup(pre, "v")
	for _, length := range []int{0, 2, 3, 9, 10, 11, 99, 100, 101, 2000} {
		delta := func(limit int) ([]byte, error) {
			d := &ArrayDiff{HasLength: true, Length: length}
			return (&applier{limit: limit}).array([]byte("before"), array.Value, d)
		}
		modifiers := func(limit int) ([]byte, error) {
			set := bson.D{{Key: strconv.Itoa(length), Value: nil}, {Key: "x", Value: nil}}
			root, err := parseModifiers(marshal(bson.D{{Key: "$set", Value: set}}))
			if err != nil {
				t.Fatal(err)
			}
			return (&modifier{applier{limit: limit}}).array([]byte("before"), array.Value, root)
		}
		for i, apply := range []func(limit int) ([]byte, error){delta, modifiers} {
			t.Run(fmt.Sprint(i, length), func(t *testing.T) {
				out, err := apply(MaxResult)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := apply(len(out)); err != nil || string(got) != string(out) {
					t.Errorf("limit of %d bytes: %v", len(out), err)
				}
				if got, err := apply(len(out) - 1); got != nil || !errors.Is(err, ErrTooLarge) {
					t.Errorf("limit of %d bytes: got %d bytes, %v", len(out)-1, len(got), err)
				}
			})
		}
	}
}
