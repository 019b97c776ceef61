/* The custom sections that the runner requires: the types of the contract, and the manifest. */
__asm__(".section \".custom_section.component-type:penstock\",\"\",@\n"
        ".incbin \"component-type.bin\"\n"
        ".section .custom_section.penstock.manifest,\"\",@\n"
        ".incbin \"manifest.json\"\n"
        ".text\n");
