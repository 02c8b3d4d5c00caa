package dispatch

import "strconv"

// ArrayKey is the name of an array's element.
func ArrayKey(n int) string { return strconv.Itoa(n) }
