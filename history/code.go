package history

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"math"
)

// A point of a stored ring has 16 bits: six of an exponent, from 2^-11 (half a
// millisecond) to 2^52, and ten of what follows the leading 1. That is exact to a
// thousandth.
const (
	mantissa = 10
	lowest   = -11
	// unknown is the code of a value that is not known; the value that would have it is coded as the
	// one below.
	unknown = math.MaxUint16
)

// encode returns the code of a value. Values below 2^-11 become 0.
func encode(value float32) uint16 {
	v := float64(value)
	switch {
	case math.IsNaN(v):
		return unknown
	case v < math.Ldexp(1, lowest):
		return 0
	}
	fraction, e := math.Frexp(v)
	m := int64(math.RoundToEven(math.Ldexp(2*fraction-1, mantissa)))
	code := int64(e-1-lowest)<<mantissa + m // a carry goes into the exponent, as it should
	return uint16(min(code, unknown-1))
}

// decode returns the value of a code.
func decode(code uint16) float32 {
	switch code {
	case unknown:
		return float32(math.NaN())
	case 0:
		return 0
	}
	m := float64(code&(1<<mantissa-1)) / (1 << mantissa)
	return float32(math.Ldexp(1+m, int(code>>mantissa)+lowest))
}

// pack returns the points of rings, compressed: of each ring, each series from its oldest
// point to the newest. A code is the difference from the one before, and the upper bytes of all
// come before the lower ones, so that an idle night takes next to nothing.
func pack(all *rings) []byte {
	var upper, lower []byte
	for i := range all {
		r := &all[i]
		for s := range Count {
			var before uint16
			for step := r.last - points + 1; step <= r.last; step++ {
				code := encode(r.point(s, step))
				d := code - before
				before = code
				upper, lower = append(upper, byte(d>>8)), append(lower, byte(d))
			}
		}
	}
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.DefaultCompression)
	for _, part := range [][]byte{upper, lower} {
		if err == nil {
			_, err = w.Write(part)
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic("history: invariant: a write to memory succeeds: " + err.Error())
	}
	return out.Bytes()
}

// mostSeries is how many series a document may have.
const mostSeries = 64

// unpack sets the points of rings, whose newest steps are set already. names are the series
// in the data; those that are not known here are left out.
func unpack(all *rings, names []string, data []byte) error {
	if len(names) > mostSeries {
		return fmt.Errorf("it has %d series", len(names))
	}
	n := len(all) * len(names) * points
	// One byte more than there should be shows that there is more.
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(data)), int64(2*n)+1))
	if err != nil {
		return fmt.Errorf("its points cannot be uncompressed: %w", err)
	}
	if len(plain) != 2*n {
		return errors.New("it has another number of points than it says")
	}
	known := map[string]Series{}
	for s := range Count {
		known[s.String()] = s
	}
	for i := range all {
		r := &all[i]
		for k, name := range names {
			s, wanted := known[name]
			var before uint16
			for j := range int64(points) {
				at1 := int64((i*len(names)+k)*points) + j
				before += uint16(plain[at1])<<8 | uint16(plain[int64(n)+at1])
				if wanted && r.begun {
					r.data[s][at(r.last-points+1+j)] = decode(before)
				}
			}
		}
	}
	return nil
}
