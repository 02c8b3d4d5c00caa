package memory

import (
	"testing"
	"testing/fstest"
)

const (
	mib    = 1 << 20
	mount2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mount1 = "33 32 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n36 32 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)

func TestContainer(t *testing.T) {
	type files map[string]string
	for _, tc := range []struct {
		name  string
		files files
		want  int64 // MiB, 0 for none
	}{
		{"no control groups, as on macOS", files{}, 0},
		{"version 2, own limit", files{
			"proc/self/cgroup": "0::/system.slice/replicator.service\n", "proc/self/mountinfo": mount2,
			"sys/fs/cgroup/system.slice/replicator.service/memory.max": "536870912\n",
			"sys/fs/cgroup/system.slice/memory.max":                    "max\n",
		}, 512},
		{"version 2, a smaller limit further out", files{
			"proc/self/cgroup": "0::/a/b/c\n", "proc/self/mountinfo": mount2,
			"sys/fs/cgroup/a/b/c/memory.max": "536870912\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "268435456\n",
		}, 256},
		{"version 2, throttled before the limit", files{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": mount2,
			"sys/fs/cgroup/a/memory.max": "536870912\n", "sys/fs/cgroup/a/memory.high": "402653184\n",
		}, 384},
		{"version 2, a namespace of its own", files{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount2, "sys/fs/cgroup/memory.max": "314572800\n",
		}, 300},
		{"version 2, outside of what it sees", files{
			"proc/self/cgroup": "0::/../other\n", "proc/self/mountinfo": mount2, "sys/fs/cgroup/memory.max": "314572800\n",
		}, 300},
		{"version 2, without a limit", files{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": mount2, "sys/fs/cgroup/a/memory.max": "max\n",
		}, 0},
		{"version 1", files{
			"proc/self/cgroup": "4:cpu,cpuacct:/x\n7:memory:/docker/1\n", "proc/self/mountinfo": mount1,
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/cpu/x/memory.limit_in_bytes": "1\n",
		}, 1024},
		{"version 1, mounted from its own group on", files{
			"proc/self/cgroup":                           "7:memory:/docker/1\n",
			"proc/self/mountinfo":                        "36 32 0:33 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
		}, 1024},
		{"version 1, without a limit", files{
			"proc/self/cgroup": "7:memory:/\n", "proc/self/mountinfo": mount1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
		{"both versions", files{
			"proc/self/cgroup": "7:memory:/a\n0::/a\n", "proc/self/mountinfo": mount1 + "40 32 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "268435456\n",
		}, 256},
		{"not as expected", files{"proc/self/cgroup": "what\n7:memory\n0::/a\n", "proc/self/mountinfo": "x - y\n" + mount2, "sys/fs/cgroup/a/memory.max": "much\n"}, 0},
	} {
		fsys := fstest.MapFS{}
		for name, text := range tc.files {
			fsys[name] = &fstest.MapFile{Data: []byte(text)}
		}
		got, ok := Container(fsys)
		if got != tc.want*mib || ok != (tc.want != 0) {
			t.Errorf("%s: %d MiB (%t), want %d MiB", tc.name, got/mib, ok, tc.want)
		}
	}
}
