package standby

// Keys of the attributes of what is logged.
const (
	keyError  = "error"
	keyFor    = "for"
	keyFrom   = "from"
	keyHolder = "holder"
	keyThen   = "then"
)
