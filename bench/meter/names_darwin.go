package meter

import "syscall"

// cpuName is the processor's name, empty where the system does not tell it.
func cpuName() string { return sysctl("machdep.cpu.brand_string") }

// kernelVersion is the system's version, empty where that cannot be told.
func kernelVersion() string { return sysctl("kern.osrelease") }

func sysctl(name string) string {
	text, _ := syscall.Sysctl(name) // without it it is not known
	return text
}
