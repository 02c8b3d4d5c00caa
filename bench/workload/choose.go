package workload

import (
	"errors"
	"math/rand/v2"
)

// errNone is the error of a workload that has deleted all documents that it may
// choose from.
var errNone = errors.New("no document is left for it: give the workload more documents or fewer deletes")

// slot is an existing document, with the state that its updates need.
type slot struct {
	number uint32
	// elements is the length of the array.
	elements uint8
	// swapped says that the field p has turned to q.
	swapped bool
}

// documents tracks the existing documents, and chooses from them.
type documents struct {
	// live are those that can be chosen, the hot ones first. It is nil where each is
	// met once, and where none is met after its insert.
	live     []slot
	tracked  bool
	elements int
	hot      int
	hotShare float64
	repeat   int
	current  int // of live: what repeated operations fall on
	left     int // how many still do
	// order is that in which documents are met once.
	order walk
	once  slot
}

func newDocuments(w Workload, elements int) documents {
	d := documents{elements: elements, hot: w.Hot, hotShare: w.HotShare, repeat: w.Repeat}
	switch {
	case w.Phases:
		d.order = newWalk(uint32(w.Documents), uint32(phaseInserts(w.Ops)))
		return d
	case w.Distinct:
		d.order = newWalk(0, uint32(w.Documents))
		return d
	}
	d.tracked = w.Mix.Update+w.Mix.Delete+w.Mix.Replace > 0
	if !d.tracked {
		return d
	}
	d.live = make([]slot, w.Documents)
	for i := range d.live {
		d.live[i] = slot{number: uint32(i), elements: uint8(elements)}
	}
	return d
}

// empty reports whether there is none to choose.
func (d *documents) empty() bool { return d.tracked && len(d.live) == d.hot }

// inserted adds a document that can be chosen from now on.
func (d *documents) inserted(number uint32) {
	if !d.tracked {
		return
	}
	d.live = append(d.live, slot{number: number, elements: uint8(d.elements)})
	d.current, d.left = len(d.live)-1, d.repeat-1
}

// choose returns the next document of those that are met once.
func (d *documents) choose() uint32 { return d.order.next() }

// pick returns a document to change.
func (d *documents) pick(r *rand.Rand) (*slot, error) {
	if !d.tracked {
		d.once = slot{number: d.choose(), elements: uint8(d.elements)}
		return &d.once, nil
	}
	n := len(d.live)
	switch {
	case n == 0:
		return nil, errNone
	case d.left > 0:
		d.left--
		return &d.live[d.current], nil
	case d.hot > 0 && (n == d.hot || r.Float64() < d.hotShare):
		d.current = r.IntN(d.hot)
	case d.hot > 0:
		d.current = d.hot + r.IntN(n-d.hot)
	default:
		d.current = r.IntN(n)
	}
	d.left = d.repeat - 1
	return &d.live[d.current], nil
}

// remove takes a document away that is not hot: that on which operations fall now, if
// there is one.
func (d *documents) remove(r *rand.Rand) (uint32, error) {
	if !d.tracked {
		return d.choose(), nil
	}
	n := len(d.live)
	if n == d.hot {
		return 0, errNone
	}
	i := d.hot + r.IntN(n-d.hot)
	if d.left > 0 && d.current >= d.hot {
		i = d.current
	}
	number := d.live[i].number
	last := n - 1
	d.live[i] = d.live[last]
	d.live = d.live[:last]
	switch {
	case i == d.current:
		d.left = 0
	case d.current == last:
		d.current = i
	}
	return number, nil
}

// walk goes through so many numbers from first on, each once, in another order.
type walk struct{ first, n, step, at uint64 }

func newWalk(first, n uint32) walk {
	w := walk{first: uint64(first), n: max(uint64(n), 1), step: 1}
	if n > 2 {
		w.step = uint64(float64(n) * 0.6180339887)
		for gcd(w.step, w.n) != 1 {
			w.step++
		}
	}
	return w
}

func (w *walk) next() uint32 {
	at := w.first + w.at
	w.at = (w.at + w.step) % w.n
	return uint32(at)
}

func gcd(a, b uint64) uint64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}
