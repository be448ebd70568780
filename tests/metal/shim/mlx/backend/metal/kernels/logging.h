// MLX overloads its log by address space, which plain C++ cannot; kernels here do not log.
#pragma once
