package main

import (
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestMoments(t *testing.T) {
	at := func(s, i uint32) bson.Timestamp { return bson.Timestamp{T: s, I: i} }
	const last = math.MaxUint32
	for text, want := range map[string]struct{ at, last bson.Timestamp }{
		"1700000000":                {at(1700000000, 0), at(1700000000, last)},
		"1700000000,3":              {at(1700000000, 3), at(1700000000, 3)},
		"1700000000:3":              {at(1700000000, 3), at(1700000000, 3)},
		"Timestamp(1700000000, 3)":  {at(1700000000, 3), at(1700000000, 3)},
		"Timestamp(1700000000,3)":   {at(1700000000, 3), at(1700000000, 3)},
		"2023-11-14T22:13:20Z":      {at(1700000000, 0), at(1700000000, last)},
		"2023-11-14T23:13:20+01:00": {at(1700000000, 0), at(1700000000, last)},
		"2023-11-14T22:13:20.9Z":    {at(1700000000, 0), at(1700000000, last)},
	} {
		var m moment
		if err := m.UnmarshalText([]byte(text)); err != nil || m.at != want.at || m.last() != want.last || !m.given() || m.String() != text {
			t.Errorf("%s: got %v to %v, %v", text, m.at, m.last(), err)
		}
	}
	for _, text := range []string{"0", "-1", "x", "1,", "1,2,3", "1:2:3", "Timestamp(1, 2", "1969-01-01T00:00:00Z", "2200-01-01T00:00:00Z", "4294967296", "1.5"} {
		if m := (moment{}); m.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q was read as %v", text, m.at)
		}
	}
	var now, none moment
	if err := now.UnmarshalText([]byte("now")); err != nil || !now.now || now.given() {
		t.Errorf("now: %+v, %v", now, err)
	}
	if err := none.UnmarshalText(nil); err != nil || none.given() || none.now {
		t.Errorf("none: %+v, %v", none, err)
	}
}

func TestTags(t *testing.T) {
	var g tags
	if err := g.UnmarshalText([]byte("dc=east,disk=ssd")); err != nil || g.String() != "dc=east,disk=ssd" {
		t.Errorf("got %v, %v", g, err)
	}
	for _, text := range []string{"", "dc", "=x", "a=b,"} {
		if g.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q was read", text)
		}
	}
}
