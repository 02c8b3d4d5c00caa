package cli

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// number reads the whole numbers of flags. They are decimal: a leading zero, which
// makes a number octal in some places, is an error, as are other bases.
func number(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("number", &text); err != nil {
		return err
	}
	digits := strings.TrimPrefix(text, "-")
	if len(digits) > 1 && digits[0] == '0' {
		return fmt.Errorf("%q is not a decimal number: write it without the leading zero", text)
	}
	if target.CanUint() {
		n, err := strconv.ParseUint(text, 10, target.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q is not a whole number from 0 to %d", text, uint64(math.MaxUint64))
		}
		target.SetUint(n)
		return nil
	}
	n, err := strconv.ParseInt(text, 10, target.Type().Bits())
	if err != nil {
		return fmt.Errorf("%q is not a whole number", text)
	}
	target.SetInt(n)
	return nil
}

// Numbers has number read the flags that are whole numbers.
func Numbers() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		for _, t := range []reflect.Type{reflect.TypeFor[int](), reflect.TypeFor[int64](), reflect.TypeFor[uint64]()} {
			if err := kong.TypeMapper(t, kong.MapperFunc(number)).Apply(k); err != nil {
				return err
			}
		}
		return nil
	})
}
