package serverquery

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/serverupdate"
)

// node is one part of a compiled filter.
type node interface {
	// match judges a document.
	match(doc []byte) outcome
	// matchValue judges an element of an array, without looking for a path and
	// without taking arrays apart.
	matchValue(v val) outcome
}

// note is the text that a node was compiled from, for validators. The zero note
// stands for nothing: ordinary filters keep no notes.
type note struct {
	operator string
	spec     bson.Raw
}

// pathNode applies a leaf to the values at a path.
type pathNode struct {
	name string
	path []string
	leaf leaf
	end  atEnd
	note note
}

func (n *pathNode) match(doc []byte) outcome { return visit(doc, n.path, n.leaf, n.end) }

func (n *pathNode) matchValue(v val) outcome { return judge(n.leaf, v) }

// allNode wants all of its parts. $all is one.
type allNode struct{ parts []node }

func (n *allNode) match(doc []byte) outcome {
	out := outcome{ok: true}
	for _, part := range n.parts {
		o := part.match(doc)
		if !o.ok {
			return o
		}
		if o.index != 0 { // the last one counts
			out.index = o.index
		}
	}
	return out
}

func (n *allNode) matchValue(v val) outcome {
	for _, part := range n.parts {
		if o := part.matchValue(v); !o.ok {
			return o
		}
	}
	return found(true)
}

// anyNode wants one of its parts; none of them if it is a $nor.
type anyNode struct {
	parts []node
	nor   bool
}

func (n *anyNode) match(doc []byte) outcome {
	for _, part := range n.parts {
		o := part.match(doc)
		if o.err != nil {
			return o
		}
		if !o.ok {
			continue
		}
		if n.nor {
			return found(false)
		}
		return o
	}
	return found(n.nor)
}

func (n *anyNode) matchValue(v val) outcome {
	for _, part := range n.parts {
		if part.matchValue(v).ok {
			return found(!n.nor)
		}
	}
	return found(n.nor)
}

// notNode turns its part around.
type notNode struct{ part node }

func (n *notNode) match(doc []byte) outcome {
	o := n.part.match(doc)
	return outcome{ok: o.err == nil && !o.ok, err: o.err}
}

func (n *notNode) matchValue(v val) outcome { return found(!n.part.matchValue(v).ok) }

// constNode is $alwaysTrue, $alwaysFalse and $comment.
type constNode struct{ ok bool }

func (n *constNode) match([]byte) outcome { return found(n.ok) }

func (n *constNode) matchValue(val) outcome { return found(n.ok) }

// exprNode is $expr.
type exprNode struct{ expr *serverupdate.Expr }

func (n *exprNode) match(doc []byte) outcome {
	ok, err := n.expr.Test(doc)
	return outcome{ok: ok, err: refusal(err)}
}

func (n *exprNode) matchValue(val) outcome { return found(false) }
