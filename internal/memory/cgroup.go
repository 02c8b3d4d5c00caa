package memory

import (
	"bufio"
	"bytes"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// unlimited is the least value that means no limit: version 1 has no word for it, but the
// largest multiple of a page.
const unlimited = 1 << 60

// Container returns the memory limit of the control groups that the process is in, in
// bytes: the smallest one from its own group up to the outermost that it can see. It
// returns false if there is none, or the system has no control groups. The root of fsys
// is that of the file system.
func Container(fsys fs.FS) (limit int64, ok bool) {
	for _, g := range groups(fsys) {
		for dir := g.dir; ; dir = path.Dir(dir) {
			for _, name := range g.files {
				if n, found := number(fsys, path.Join(dir, name)); found && (!ok || n < limit) {
					limit, ok = n, true
				}
			}
			if dir == g.mount || dir == "." {
				break
			}
		}
	}
	return limit, ok
}

// Machine returns the memory of the machine in bytes, false where the system does not say.
// The root of fsys is that of the file system.
func Machine(fsys fs.FS) (total int64, ok bool) {
	for _, line := range lines(fsys, "proc/meminfo") {
		fields := strings.Fields(line) // MemTotal: number kB
		if len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n << 10, err == nil && n > 0 && n < unlimited>>10
		}
	}
	return 0, false
}

// group is the process's group in one hierarchy.
type group struct {
	// dir is its directory, mount that of the hierarchy; both without a leading slash.
	dir, mount string
	// files have limits.
	files []string
}

// groups returns the groups of the process that can limit memory: of version 2, and of
// the hierarchy memory of version 1. A system may have both.
func groups(fsys fs.FS) []group {
	var list []group
	for _, line := range lines(fsys, "proc/self/cgroup") {
		parts := strings.SplitN(line, ":", 3) // number:controllers:path
		if len(parts) < 3 {
			continue
		}
		kind, files := "cgroup2", []string{"memory.max", "memory.high"}
		if parts[1] != "" {
			kind, files = "cgroup", []string{"memory.limit_in_bytes"}
			if !listed(parts[1], "memory") {
				continue
			}
		}
		root, mount, ok := mounted(fsys, kind)
		if !ok {
			continue
		}
		list = append(list, group{dir: within(parts[2], root, mount), mount: mount, files: files})
	}
	return list
}

// mounted returns where a hierarchy is mounted, and which of its directories is there.
func mounted(fsys fs.FS, kind string) (root, mount string, ok bool) {
	for _, line := range lines(fsys, "proc/self/mountinfo") {
		// id parent major:minor root mount options … - kind source options
		before, after, found := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !found || len(left) < 5 || len(right) < 3 || right[0] != kind {
			continue
		}
		if kind == "cgroup" && !listed(right[2], "memory") {
			continue
		}
		return left[3], strings.TrimPrefix(path.Clean(left[4]), "/"), true
	}
	return "", "", false
}

// within returns the directory of a group. A container may see only a part of the
// hierarchy, and may be told the path of its group in all of it.
func within(group, root, mount string) string {
	rest, ok := strings.CutPrefix(group, strings.TrimSuffix(root, "/")+"/")
	if !ok || strings.HasPrefix(rest, "..") {
		return mount
	}
	return path.Join(mount, rest)
}

func listed(list, word string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if item == word {
			return true
		}
	}
	return false
}

// number reads a limit: a number of bytes, or "max".
func number(fsys fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && n > 0 && n < unlimited
}

func lines(fsys fs.FS, name string) []string {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil
	}
	var list []string
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		list = append(list, s.Text())
	}
	return list
}
