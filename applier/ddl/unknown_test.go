package ddl_test

import (
	"slices"
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
)

// TestUnknownFields: what this release and those before it defer is known to it: it restores that. Another field is not.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		index           string
		fields, unknown []string
	}{
		{"a_1", []string{"expireAfterSeconds", "unique", "prepareUnique"}, nil},
		{"", []string{"temp", "expireAfterSeconds"}, nil},
		{"a_1", nil, nil}, // an index that is absent as a whole
		{"a_1", []string{"temp", "unique"}, []string{"temp"}},
		{"", []string{"unique"}, []string{"unique"}},
	} {
		h := ddl.DeferredSpec{Index: tt.index, Fields: tt.fields}
		if got := h.Unknown(); !slices.Equal(got, tt.unknown) {
			t.Errorf("%q: of %q it does not know %q, want %q", tt.index, tt.fields, got, tt.unknown)
		}
	}
}
