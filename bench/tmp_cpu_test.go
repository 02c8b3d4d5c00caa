package bench

import (
	"os"
	"syscall"
	"testing"
	"strconv"
	"time"
)

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(0, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestTmpCPU(t *testing.T) {
	docs, _ := strconv.Atoi(os.Getenv("DOCS"))
	size, _ := strconv.Atoi(os.Getenv("SIZE"))
	workers, _ := strconv.Atoi(os.Getenv("WORKERS"))
	if docs == 0 { t.Skip() }
	c := newCopying(t, docs, size)
	only := os.Getenv("ONLY")
	for range 5 {
		a := cpu()
		var o, b time.Duration
		if only != "bare" { o = c.ours(workers) }
		m := cpu()
		if only != "ours" { b = c.bare(workers) }
		e := cpu()
		t.Logf("wall %v %v ratio %.2f   cpu %v %v ratio %.2f", o, b, b.Seconds()/o.Seconds(), m-a, e-m, (e-m).Seconds()/(m-a).Seconds())
	}
}
