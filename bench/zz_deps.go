package bench

import (
	_ "github.com/HdrHistogram/hdrhistogram-go"
	_ "github.com/google/pprof/profile"
	_ "gonum.org/v1/plot"
	_ "gonum.org/v1/plot/plotter"
	_ "gonum.org/v1/plot/vg/vgimg"
	_ "gonum.org/v1/plot/vg/vgsvg"
)
