package memory

const (
	// MinLink is the minimum of the memory of a link, in bytes: with a collection that is being
	// copied again, it leaves enough for every stage.
	MinLink = 224 << 20
	// program is the memory of the process that does not depend on what it mirrors: the
	// program, the runtime, connections and stacks.
	program = 48 << 20
	// part is the memory of a part: a pipeline of its own.
	part = 96 << 20
	// fetched is for the replies of the oplog that are on their way to the spool while
	// a copy runs.
	fetched = 48 << 20
	// least is the minimum of the larger shares.
	least = 32 << 20
)

// OfLink returns the memory of each of so many links that share a process of so much memory.
// The part that does not depend on links exists once, but is counted for each link.
func OfLink(process int64, links int) int64 {
	return program + (process-program)/int64(links)
}

// OfProcess returns the memory of a process whose links have so much each: the inverse.
func OfProcess(link int64, links int) int64 {
	return program + (link-program)*int64(links)
}

// Shares are how the memory of a link is divided, in bytes. The rest is for
// the garbage collector: if all of the memory were in use, it would run without end.
type Shares struct {
	// Buffer is for entries from the fetcher until they have been applied, with the reply
	// that is being read.
	Buffer int64
	// Window is for operations in the lanes, twice: as they wait, and in their plans and in
	// messages on the way to the target. Half as much is for those that are kept back while
	// an index is built.
	Window int64
	// Txn is for transactions that are open, or committed and not applied.
	Txn int64
	// Copied is for the documents of a copy, from when they are read until they are written.
	// Meanwhile the oplog is on disk, and nothing is applied.
	Copied int64
}

// SharesOf divides the memory of a link while so many collections are copied again.
func SharesOf(link int64, parts int) Shares {
	return divide(link - program - int64(parts)*part)
}

// SharesOfPart divides the memory of a part.
func SharesOfPart() Shares { return divide(part) }

// Parts returns how many collections a link of so much memory may copy again at the same time.
func Parts(link int64) int {
	const needed = MinLink - part // what a link needs besides them
	return int(min(2, max(1, (link-needed)/part)))
}

func divide(memory int64) Shares {
	const (
		collector = 4 // one of so many parts, as for others
		window    = 10
		txn       = 10
	)
	s := Shares{Window: min(memory/window, 32<<20), Txn: min(memory/txn, 64<<20)}
	used := memory - memory/collector
	s.Buffer = max(least, used-2*s.Window-s.Window/2-s.Txn)
	s.Copied = max(least, used-fetched)
	return s
}
