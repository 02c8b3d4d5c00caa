package fetcher

// Keys of the attributes of log lines.
const (
	keyHost   = "host"
	keyError  = "error"
	keyFrom   = "from"
	keyLast   = "last"
	keyReason = "reason"
	keyAgain  = "restart" // counts the restarts in a row, from 1
)
