package memory

import (
	"runtime/debug"
	"testing"
	"testing/fstest"
)

func TestTotal(t *testing.T) {
	on := func(fsys fstest.MapFS, kilobytes string) fstest.MapFS {
		fsys["proc/meminfo"] = &fstest.MapFile{Data: []byte("MemTotal:       " + kilobytes + " kB\nMemFree:        1 kB\n")}
		return fsys
	}
	container := func(bytes string) fstest.MapFS {
		return fstest.MapFS{
			"proc/self/cgroup":         {Data: []byte("0::/\n")},
			"proc/self/mountinfo":      {Data: []byte(mount2)},
			"sys/fs/cgroup/memory.max": {Data: []byte(bytes)},
		}
	}
	for _, tc := range []struct {
		name    string
		given   int64 // MiB, as the others
		fsys    fstest.MapFS
		runtime int64
		want    int64
		from    Source
		links   int // 1 if it is 0
	}{
		{"nothing", 0, nil, 0, 320, FromDefault, 0},
		{"a container", 0, container("524288000"), 0, 450, FromContainer, 0},
		{"a small container", 0, container("262144000"), 0, 225, FromContainer, 0},
		{"a large container", 0, container("68719476736"), 0, 1024, FromContainer, 0},
		{"a container larger than its machine", 0, on(container("1073741824"), "524288"), 0, 460, FromMachine, 0},
		{"a container on its machine", 0, on(container("524288000"), "1048576"), 0, 450, FromContainer, 0},
		{"a small machine", 0, on(fstest.MapFS{}, "262144"), 0, 230, FromMachine, 0},
		{"a machine of which nothing is known", 0, on(fstest.MapFS{}, "many"), 0, 320, FromDefault, 0},
		{"a small machine, and the operator knows better", 512, on(fstest.MapFS{}, "262144"), 0, 512, FromFlag, 0},
		{"the operator knows better", 2000, container("524288000"), 0, 2000, FromFlag, 0},
		{"the runtime has less", 400, container("524288000"), 300, 328, FromRuntime, 0},
		{"the runtime has more", 0, container("524288000"), 600, 450, FromContainer, 0},
		{"several links", 0, nil, 0, 960, FromDefault, 3},
		{"several links in a container", 0, container("1048576000"), 0, 900, FromContainer, 3},
		{"several links in a large container", 0, container("68719476736"), 0, 3072, FromContainer, 3},
		{"several links, and the operator knows better", 512, nil, 0, 512, FromFlag, 3},
		{"as much as it would get", 328, nil, 300, 328, FromFlag, 0},
	} {
		got, from := Total(tc.given*mib, max(1, tc.links), tc.fsys, tc.runtime*mib)
		if got/mib != tc.want || from != tc.from {
			t.Errorf("%s: %d MiB by %s, want %d by %s", tc.name, got/mib, from, tc.want, tc.from)
		}
	}
}

// TestApply: the runtime gets the limit, and afterwards the one before.
func TestApply(t *testing.T) {
	before := debug.SetMemoryLimit(1 << 40)
	undo := Apply(512 * mib)
	if got := debug.SetMemoryLimit(-1); got != (512-28)*mib {
		t.Errorf("the limit is %d MiB", got/mib)
	}
	undo()
	if got := debug.SetMemoryLimit(before); got != 1<<40 {
		t.Errorf("afterwards the limit is %d", got)
	}
}
