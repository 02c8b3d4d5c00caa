package command

import "strconv"

// arrayKey is the name of an array's element.
func arrayKey(n int) string { return strconv.Itoa(n) }
