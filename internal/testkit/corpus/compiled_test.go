package corpus

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

func TestJudge(t *testing.T) {
	raw := func(d bson.D) bson.Raw {
		b, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	pre := raw(bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}})
	post := raw(bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 2}})
	long := raw(bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: strings.Repeat("x", 1000)}})
	delta := func(diff bson.D) *oplog.Op {
		return &oplog.Op{Kind: oplog.KindUpdate, NS: "d.c", O: raw(bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}})}
	}
	set := delta(bson.D{{Key: "u", Value: bson.D{{Key: "a", Value: 2}}}})

	var j judge
	j.update(pre, set, pre)
	if j.judged != 0 || j.wrong != nil {
		t.Error("it judges while it is off")
	}
	j.on, j.exact = true, true
	j.update(pre, set, post)
	if j.judged != 1 || j.wrong != nil || j.wrongOnPreImage != nil || j.misfits != 0 {
		t.Errorf("a right update: %+v", j)
	}
	j.update(pre, &oplog.Op{O: post}, post)
	if j.judged != 1 {
		t.Error("it judges a replacement")
	}
	j.update(pre, delta(bson.D{{Key: "b", Value: bson.D{{Key: "f", Value: bson.D{
		{Key: "o", Value: 0}, {Key: "d", Value: bson.Binary{Data: []byte("x")}},
	}}}}}), pre)
	if j.judged != 2 || j.wrong != nil {
		t.Errorf("what cannot be compiled: %+v", j)
	}
	if want := int64(2*len(pre) + len(post) + len(pre)); j.bytes != want || j.written != int64(2*len(pre)+2*len(post)) {
		t.Errorf("%d bytes judged, %d written, want %d and %d", j.bytes, j.written, want, 2*len(pre)+2*len(post))
	}
	for range maxWrong + 1 {
		j.update(pre, set, long)
	}
	if len(j.wrong) != maxWrong || len(j.wrongOnPreImage) != maxWrong || len(j.wrong[0]) > 1000 ||
		!strings.Contains(j.wrong[0], `d.c: _id`) || !strings.Contains(j.wrong[0], `gives {"_id"`) {
		t.Errorf("a wrong update: %d and %d complaints: %.2000s", len(j.wrong), len(j.wrongOnPreImage), j.wrong[:1])
	}
	if j.misfits != 1 { // the binary section, which needs binary data
		t.Errorf("%d misfits, want 1", j.misfits)
	}
	j = judge{on: true}
	j.update(pre, set, long)
	if len(j.wrong) != 1 || j.wrongOnPreImage != nil {
		t.Errorf("judged for the pre-image, which nobody says it is: %q", j.wrongOnPreImage)
	}
	j = judge{on: true}
	j.update(pre, delta(bson.D{{Key: "x", Value: 1}}), pre)
	if len(j.wrong) != 1 || !strings.Contains(j.wrong[0], "unknown section") {
		t.Errorf("what is no delta: %q", j.wrong)
	}
}
