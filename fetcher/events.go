package fetcher

// Keys of the attributes of what is logged.
const (
	keyHost   = "host"
	keyError  = "error"
	keyFrom   = "from"
	keyLast   = "last"
	keyReason = "reason"
	keyAgain  = "restart" // counts the restarts in a row, from 1
)
