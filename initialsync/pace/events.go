package pace

// Keys of the attributes of what is logged.
const (
	keySide   = "side"
	keyWhy    = "why"
	keyFactor = "factor"
	keyError  = "error"
)
