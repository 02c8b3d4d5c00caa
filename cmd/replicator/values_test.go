package main

import (
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]size{
		"0": 0, "65536": 65536, "64KiB": 64 << 10, "256MiB": 256 << 20, "1.5GiB": 3 << 29, "2GB": 2e9, "7 MB": 7e6, "5kB": 5000, "12B": 12,
	} {
		var s, again size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s: got %d, %v; want %d", text, s, err, want)
		}
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != want {
			t.Errorf("%s: printed as %s, read back as %d, %v", text, s, again, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1TB", "1e30GiB", "MiB", "NaN", "Inf"} {
		if s := size(0); s.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q was read as %d", text, s)
		}
	}
}

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
