package update_test

import (
	"testing"

	"github.com/oplogrep/replicator/oplog/update"
)

func TestScratchGap(t *testing.T) {
	doc := parse(t, `{"_id":1,"a":[0,1]}`)
	show(t, "gap preimage modifiers", doc, parse(t, `{"sa":{"a":true,"u5":1}}`), preImage)
	show(t, "gap preimage with insert", doc, parse(t, `{"i":{"b":2},"sa":{"a":true,"u5":1}}`), preImage)
	show(t, "gap newfields dollar value", doc, parse(t, `{"sa":{"a":true,"u5":{"$x":1}}}`), newFields)
	show(t, "gap none", doc, parse(t, `{"i":{"b":2},"sa":{"a":true,"u5":1}}`), update.CompileOptions{})
	show(t, "gap empty", parse(t, `{"_id":1,"a":[]}`), parse(t, `{"i":{"b":2},"sa":{"a":true,"u1":{"c":1}}}`), preImage)
}
