package pipeline

const (
	// MinMemory is the minimum of Config.Memory, in bytes: with a collection that is being
	// copied again, it leaves enough for every stage.
	MinMemory = 224 << 20
	// programMemory is the memory of the process that does not depend on what it mirrors: the
	// program, the runtime, connections and stacks.
	programMemory = 48 << 20
	// partMemory is the memory of a part: a pipeline of its own.
	partMemory = 96 << 20
	// fetchedMemory is for the replies of the oplog that are on their way to the spool while
	// a copy runs.
	fetchedMemory = 48 << 20
	// least is the minimum of the larger shares.
	least = 32 << 20
)

// MemoryOf returns Config.Memory of each of so many links that share a process of so much memory.
// What does not depend on links is there once, and each link counts on it.
func MemoryOf(process int64, links int) int64 {
	return programMemory + (process-programMemory)/int64(links)
}

// ProcessMemory returns the memory of a process whose links have so much each: the inverse.
func ProcessMemory(link int64, links int) int64 {
	return programMemory + (link-programMemory)*int64(links)
}

// shares are how the memory of a link is divided, in bytes. What is in none of them is
// for the garbage collector: if all of the memory were in use, it would run without end.
type shares struct {
	// buffer is for entries from the fetcher until they have been applied, with the reply
	// that is being read.
	buffer int64
	// window is for operations in the lanes, twice: as they wait, and in their plans and in
	// messages on the way to the target. Half as much is for those that are kept back while
	// an index is built.
	window int64
	// txn is for transactions that are open, or committed and not applied.
	txn int64
	// copied is for the documents of a copy, from when they are read until they are written.
	// Meanwhile the oplog is on disk, and nothing is applied.
	copied int64
}

// sharesOf divides so many bytes.
func sharesOf(memory int64) shares {
	const (
		collector = 4 // one of so many parts, as for others
		window    = 10
		txn       = 10
	)
	s := shares{window: min(memory/window, 32<<20), txn: min(memory/txn, 64<<20)}
	used := memory - memory/collector
	s.buffer = max(least, used-2*s.window-s.window/2-s.txn)
	s.copied = max(least, used-fetchedMemory)
	return s
}

// memory returns the shares of a link while some collections are being copied again.
func (c *Config) memory(parts int) shares {
	if c.part != nil {
		return sharesOf(partMemory)
	}
	s := sharesOf(c.Memory - programMemory - int64(parts)*partMemory)
	if c.WindowBytes > 0 {
		s.window = c.WindowBytes
	}
	return s
}

// parts returns how many collections may be copied again at the same time.
func (c *Config) parts() int {
	const link = MinMemory - partMemory // what a link needs besides them
	return int(min(2, max(1, (c.Memory-link)/partMemory)))
}

// memory returns the shares of the present attempt.
func (p *Pipeline) memory() shares { return p.cfg.memory(p.resyncs.Running()) }
