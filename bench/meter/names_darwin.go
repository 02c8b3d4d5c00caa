package meter

import "syscall"

// cpuName returns the processor's name, empty if unknown.
func cpuName() string { return sysctl("machdep.cpu.brand_string") }

// kernelVersion returns the system's version, empty if unknown.
func kernelVersion() string { return sysctl("kern.osrelease") }

func sysctl(name string) string {
	text, _ := syscall.Sysctl(name) // without it it is not known
	return text
}
