package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes, written as 65536, 64KiB, 256MiB or 1.5GiB.
type Size int64

var sizeUnits = []struct {
	suffix string
	bytes  float64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}, {"", 1}}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	for _, u := range sizeUnits {
		number, ok := strings.CutSuffix(string(text), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if n *= u.bytes; err != nil || !(n == 0 || n >= 1 && n < math.MaxInt64) {
			break
		}
		*s = Size(n)
		return nil
	}
	return fmt.Errorf("%q is not a size: write a number of bytes, or one followed by KiB, MiB, GiB or TiB", text)
}

// String writes what UnmarshalText reads.
func (s Size) String() string {
	for _, u := range sizeUnits[:4] {
		if unit := Size(u.bytes); s != 0 && s%unit == 0 {
			return strconv.FormatInt(int64(s/unit), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
