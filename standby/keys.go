package standby

// Keys of log attributes.
const (
	keyError  = "error"
	keyFor    = "for"
	keyFrom   = "from"
	keyHolder = "holder"
	keyThen   = "then"
)
