package pace

// Keys of the events' attributes.
const (
	keySide   = "side"
	keyWhy    = "why"
	keyFactor = "factor"
	keyError  = "error"
)
