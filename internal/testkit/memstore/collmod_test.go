package memstore

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func index1(change ...bson.E) bson.E {
	return bson.E{Key: "index", Value: append(bson.D{{Key: "name", Value: "x"}}, change...)}
}

func TestCollMod(t *testing.T) {
	timeseries := bson.D{{Key: "timeField", Value: "t"}, {Key: "granularity", Value: "seconds"}, {Key: "bucketMaxSpanSeconds", Value: 3600}}
	enabled := func(on bool) bson.E {
		return bson.E{Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: on}}}
	}
	validator := bson.E{Key: "validator", Value: bson.D{{Key: "x", Value: 1}}}
	tests := []struct {
		name    string
		options bson.D // on create
		index   bson.D
		changes []bson.E
		want    string // the options
		spec    string // of the index, "" for unchanged
	}{
		{"nothing", nil, nil, nil, `{}`, ""},
		{"what any command may have", nil, nil, []bson.E{{Key: "$db", Value: "d"}, {Key: "writeConcern", Value: bson.D{}}}, `{}`, ""},
		{"what any command may have since", nil, nil, []bson.E{
			{Key: "maxTimeMSOpOnly", Value: 5},
			{Key: "autocommit", Value: false},
			{Key: "startTransaction", Value: true},
			{Key: "stmtId", Value: 1},
			{Key: "coordinator", Value: true},
			{Key: "clientOperationKey", Value: "x"},
			{Key: "mayBypassWriteBlocking", Value: true},
			{Key: "rawData", Value: true},
			{Key: "help", Value: false},
		}, `{}`, ""},
		{"what is ignored for long", nil, nil, []bson.E{{Key: "usePowerOf2Sizes", Value: true}, {Key: "noPadding", Value: false}}, `{}`, ""},
		{"a validator brings its defaults", nil, nil, []bson.E{validator}, `{"validator":{"x":1},"validationLevel":"strict","validationAction":"error"}`, ""},
		{
			"what was set stays",
			bson.D{{Key: "validationLevel", Value: "moderate"}},
			nil,
			[]bson.E{{Key: "validationAction", Value: "warn"}, validator},
			`{"validator":{"x":1},"validationLevel":"moderate","validationAction":"warn"}`, "",
		},
		{
			"an empty validator is none",
			bson.D{validator},
			nil,
			[]bson.E{{Key: "validator", Value: bson.D{}}},
			`{"validationLevel":"strict","validationAction":"error"}`, "",
		},
		{"pre-images on", nil, nil, []bson.E{{Key: "recordPreImages", Value: true}}, `{"recordPreImages":true}`, ""},
		{"pre-images off", bson.D{{Key: "recordPreImages", Value: true}}, nil, []bson.E{{Key: "recordPreImages", Value: false}}, `{}`, ""},
		{"change stream images on", nil, nil, []bson.E{enabled(true)}, `{"changeStreamPreAndPostImages":{"enabled":true}}`, ""},
		{"change stream images off", bson.D{enabled(true)}, nil, []bson.E{enabled(false)}, `{}`, ""},
		{"expiry", bson.D{{Key: "clusteredIndex", Value: true}}, nil, []bson.E{{Key: "expireAfterSeconds", Value: 7.0}}, `{"clusteredIndex":true,"expireAfterSeconds":7}`, ""},
		{
			"expiry off",
			bson.D{{Key: "clusteredIndex", Value: true}, {Key: "expireAfterSeconds", Value: 5}},
			nil,
			[]bson.E{{Key: "expireAfterSeconds", Value: "off"}},
			`{"clusteredIndex":true}`, "",
		},
		{
			"granularity",
			bson.D{{Key: "timeseries", Value: timeseries}},
			nil,
			[]bson.E{{Key: "timeseries", Value: bson.D{{Key: "granularity", Value: "hours"}}}},
			`{"timeseries":{"timeField":"t","granularity":"hours","bucketMaxSpanSeconds":2592000}}`, "",
		},
		{
			"bucket span",
			bson.D{{Key: "timeseries", Value: timeseries}},
			nil,
			[]bson.E{{Key: "timeseries", Value: bson.D{{Key: "bucketMaxSpanSeconds", Value: 9000}, {Key: "bucketRoundingSeconds", Value: 9000}}}},
			`{"timeseries":{"timeField":"t","bucketMaxSpanSeconds":9000,"bucketRoundingSeconds":9000}}`, "",
		},
		{
			"capped limits",
			bson.D{{Key: "capped", Value: true}, {Key: "size", Value: 512}},
			nil,
			[]bson.E{{Key: "cappedSize", Value: 1000}, {Key: "cappedMax", Value: int64(10)}},
			`{"capped":true,"size":1024,"max":10}`, "",
		},
		{
			"capped limit off",
			bson.D{{Key: "capped", Value: true}, {Key: "size", Value: 512}, {Key: "max", Value: 10}},
			nil,
			[]bson.E{{Key: "cappedMax", Value: -1}},
			`{"capped":true,"size":512}`, "",
		},
		{"hide an index", nil, nil, []bson.E{index1(bson.E{Key: "hidden", Value: true})}, `{}`, `{"v":2,"key":{"x":1},"name":"x","hidden":true}`},
		{"show an index", nil, bson.D{{Key: "hidden", Value: true}}, []bson.E{index1(bson.E{Key: "hidden", Value: false})}, `{}`, `{"v":2,"key":{"x":1},"name":"x"}`},
		{
			"expiry of an index", nil,
			bson.D{{Key: "expireAfterSeconds", Value: 5}},
			[]bson.E{index1(bson.E{Key: "expireAfterSeconds", Value: int64(9)})},
			`{}`, `{"v":2,"key":{"x":1},"name":"x","expireAfterSeconds":9}`,
		},
		{"prepare for unique", nil, nil, []bson.E{index1(bson.E{Key: "prepareUnique", Value: true})}, `{}`, `{"v":2,"key":{"x":1},"name":"x","prepareUnique":true}`},
		{"unprepare", nil, bson.D{{Key: "prepareUnique", Value: true}}, []bson.E{index1(bson.E{Key: "prepareUnique", Value: false})}, `{}`, `{"v":2,"key":{"x":1},"name":"x"}`},
		{"make unique", nil, bson.D{{Key: "prepareUnique", Value: true}}, []bson.E{index1(bson.E{Key: "unique", Value: true})}, `{}`, `{"v":2,"key":{"x":1},"name":"x","unique":true}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{t: t}
			s := New(Config{})
			mustApply(t, s, Steady, l.create("d.c", 1, tt.options...), l.createIndex("d.c", 1, indexSpec("x", tt.index...)))
			before := indexes(s, "d.c")
			mustApply(t, s, Steady, l.collMod("d.c", 1, tt.changes...))
			wantEqual(t, "options", options(s, "d.c"), tt.want)
			after := indexes(s, "d.c")
			if tt.spec != "" {
				before[len(before)-1] = tt.spec
			}
			wantEqual(t, "indexes", after, before)
		})
	}
}

// TestCollModChangesNothingHalfway has a change that is possible before one that
// is not.
func TestCollModChangesNothingHalfway(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	mustApply(t, s, Steady, l.create("d.c", 1), l.createIndex("d.c", 1, indexSpec("x")))
	before := s.Snapshot()
	err := apply(t, s, Steady, l.collMod("d.c", 1,
		bson.E{Key: "recordPreImages", Value: true}, index1(bson.E{Key: "hidden", Value: true}), bson.E{Key: "novel", Value: 1}))
	if err == nil {
		t.Fatal("no error")
	}
	wantEqual(t, "the state", Diff(before, s.Snapshot()), nil)
}
