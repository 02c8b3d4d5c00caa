package monitor

import (
	"cmp"
	"slices"
)

// HotDocument is a document that has a large part of the operations of its namespace. All of
// them go through one lane, one after the other.
type HotDocument struct {
	// Hash is the hash by which its lane is chosen. The _id is not kept.
	Hash uint32
	// Share is its part of the namespace's operations lately, from 0 to 1, estimated from a
	// sample, and not too high.
	Share float64
}

const (
	// sketched is how many documents of a namespace are counted: any that has more than one
	// in so many of the sampled operations is among them.
	sketched = 16
	// hotShare is from which part of the operations on a document is hot, hotSamples how many
	// operations must have been sampled lately to say so.
	hotShare   = 0.1
	hotSamples = 64
)

// sketch finds the documents that are sampled most often, in fixed memory: a document that is
// not counted takes the place of the one with the smallest count, and that count, which is
// then its error (the algorithm "space-saving"). The zero sketch has none.
type sketch struct {
	docs  [sketched]sketchedDoc
	total int64
}

type sketchedDoc struct {
	hash       uint32
	count, err int64
}

// count counts an operation on a document.
func (s *sketch) count(hash uint32) {
	s.total++
	least := 0
	for i := range s.docs {
		d := &s.docs[i]
		if d.count > 0 && d.hash == hash {
			d.count++
			return
		}
		if d.count < s.docs[least].count {
			least = i
		}
	}
	d := &s.docs[least]
	*d = sketchedDoc{hash: hash, count: d.count + 1, err: d.count}
}

// halve makes the counts until now weigh half as much as later ones.
func (s *sketch) halve() {
	s.total /= 2
	for i := range s.docs {
		d := &s.docs[i]
		d.count, d.err = d.count/2, (d.err+1)/2
	}
}

// hot returns the documents that are certainly hot.
func (s *sketch) hot() (list []HotDocument) {
	if s.total < hotSamples {
		return nil
	}
	for i := range s.docs {
		if share := float64(s.docs[i].count-s.docs[i].err) / float64(s.total); share >= hotShare {
			list = append(list, HotDocument{s.docs[i].hash, share})
		}
	}
	slices.SortFunc(list, func(a, b HotDocument) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Hash, b.Hash))
	})
	return list
}
