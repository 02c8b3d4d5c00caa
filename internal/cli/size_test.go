package cli

import "testing"

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "65536": 65536, "64KiB": 64 << 10, "256MiB": 256 << 20, "1.5GiB": 3 << 29, "2TiB": 2 << 40, "2GB": 2e9, "7 MB": 7e6, "5kB": 5000, "12B": 12,
	} {
		var s, again Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s: got %d, %v; want %d", text, s, err, want)
		}
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != want {
			t.Errorf("%s: printed as %s, read back as %d, %v", text, s, again, err)
		}
	}
	// A part of a byte would be 0, which means no limit.
	for _, text := range []string{"", "x", "-1", "1TB", "1e30GiB", "MiB", "NaN", "Inf", "0.5", "0.0001KiB"} {
		if s := Size(0); s.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q was read as %d", text, s)
		}
	}
}
