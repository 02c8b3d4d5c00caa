package ddl

import "testing"

// TestBadRange has what PCRE2 10.42 says of each pattern.
func TestBadRange(t *testing.T) {
	for _, pattern := range []string{
		`[\w-z]`, `^[\w-.]+$`, `[a-\d]`, `[\w-\d]`, `[[:alpha:]-z]`, `[a-[:^alpha:]]`, `[]\w-z]`, `[^]\w-z]`, `[\p{L}-z]`, `[\PL-z]`, `[\Qa\E\w-z]`,
		`[+-\w]`, `[--\w]`, `[\w--]`, `[\w--z]`, `[\h-1]`, `[\c]\w-z]`, `[\w-\Qz\E]`, `[a][\s-_]`, `\[[\w-z]`, `[a\]\w-z]`,
	} {
		if !badRange(pattern) {
			t.Errorf("%s is accepted", pattern)
		}
	}
	for _, pattern := range []string{
		`[\w-]`, `[\\w-z]`, `\[\w-z]`, `[\w\-z]`, `[\b-z]`, `\Q[\w-z]\E`, `[\Q\w-z\E]`, `[a-c-\d]`, `[a-c-z]`, `[[:digit:]\d-]`, `(?#[\w-z])a`,
		`[-\w]`, `[a]\w-z]`, `a\w-z`, `[a-z\d_-]`, `\`, `[`, `[\w-`, `\Q[`, `[\`, `[]-z]`, `(?#`,
	} {
		if badRange(pattern) {
			t.Errorf("%s is refused", pattern)
		}
	}
}
