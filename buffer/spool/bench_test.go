package spool

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/oplogrep/replicator/oplog"
)

// BenchmarkStore writes replies of 1 MiB, of entries of 1 KiB.
func BenchmarkStore(b *testing.B) {
	benchmark(b, func(b *testing.B, s *Spool, in chan oplog.Reply, r func() oplog.Reply) {
		done := make(chan error, 1)
		go func() { done <- s.Store(b.Context(), in) }()
		for b.Loop() {
			b.StopTimer()
			next := r()
			b.StartTimer()
			in <- next
			if s.Disk().Bytes > 1<<30 {
				_, last, _ := s.Bounds()
				_ = s.Forget(last)
			}
		}
		close(in)
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkReadBack reads back what BenchmarkStore writes.
func BenchmarkReadBack(b *testing.B) {
	const count = 256
	benchmark(b, func(b *testing.B, s *Spool, in chan oplog.Reply, r func() oplog.Reply) {
		done := make(chan error, 1)
		go func() { done <- s.Store(b.Context(), in) }()
		for range count {
			in <- r()
		}
		close(in)
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		var out chan oplog.Reply
		var end context.CancelCauseFunc
		begin := func() {
			var ctx context.Context
			ctx, end = context.WithCancelCause(b.Context())
			out = make(chan oplog.Reply)
			to := out
			go func() { done <- s.Read(ctx, to) }()
		}
		finish := func() {
			end(errAll)
			if err := <-done; !errors.Is(err, errAll) {
				b.Fatal(err)
			}
		}
		n := 0
		begin()
		for b.Loop() {
			if n == count {
				finish()
				begin()
				n = 0
			}
			got := <-out
			s.Release(got.Bytes)
			n++
		}
		finish()
	})
}

func benchmark(b *testing.B, run func(b *testing.B, s *Spool, in chan oplog.Reply, r func() oplog.Reply)) {
	s, err := Open(Config{Dir: b.TempDir(), ID: "x", MinFree: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.Remove(); err != nil {
			b.Error(err)
		}
	}()
	one := entry(b, 1, 880)
	stamp := bytes.Index(one.Raw, []byte("ts\x00")) + 3
	n := uint32(0)
	next := func() oplog.Reply {
		r := oplog.Reply{Entries: make([]oplog.Entry, 1024), Bytes: 1024 * (1024 + entrySize)}
		for i := range r.Entries {
			n++
			r.Entries[i] = one
			r.Entries[i].Raw = bytes.Clone(one.Raw)
			binary.LittleEndian.PutUint32(r.Entries[i].Raw[stamp:], n)
			r.Entries[i].OpTime.TS.I = n
		}
		return r
	}
	b.SetBytes(1024 * int64(len(one.Raw)))
	b.ReportAllocs()
	run(b, s, make(chan oplog.Reply), next)
}
