package servererr

import "testing"

// TestOneKind: every code has one kind.
func TestOneKind(t *testing.T) {
	t.Parallel()
	seen := map[Code]Kind{}
	for k, codes := range kinds {
		for _, c := range codes {
			if was, twice := seen[c]; twice {
				t.Errorf("%s is %s and %s", c, was, k)
			}
			seen[c] = k
		}
	}
}
